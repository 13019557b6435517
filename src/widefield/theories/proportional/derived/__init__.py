"""What follows from many marches: the best rate, whether it transfers, and how fast losses fall."""
