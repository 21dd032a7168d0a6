"""The hidden Chow-Liu tree: a latent for every variable, tied together by a tree."""
