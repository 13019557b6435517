"""Linear networks: a free energy of the kernel alone, minimized over positive definite matrices."""
