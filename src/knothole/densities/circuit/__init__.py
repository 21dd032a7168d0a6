"""Any smooth and decomposable circuit of sums, products and distributions."""
