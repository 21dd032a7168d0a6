"""The figure of Khosravi et al. (2020), its authors' masks, and what the paper leaves open."""
