"""Who writes? Targets of other forms than the model that chapter 01 builds."""
