"""The exercises: of each chapter its judge and its pictures, and how far a reader has come."""
