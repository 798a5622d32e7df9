"""The exercises: of each chapter its judge, and the pictures that only it draws."""
