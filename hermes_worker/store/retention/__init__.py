"""What is kept for how long, and the deletion of what need not be kept any more."""
