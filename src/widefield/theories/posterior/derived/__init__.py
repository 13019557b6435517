"""What follows from a trained kernel, or approximates it: weak labels, the spectrum of the weights."""
