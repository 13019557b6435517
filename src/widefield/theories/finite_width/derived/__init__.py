"""What follows from K, G1 and V: regression, couplings, averages of one neuron, criticality."""
