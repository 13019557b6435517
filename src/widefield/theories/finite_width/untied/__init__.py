"""Deep networks with fresh parameters at every layer: the layer recursion."""
