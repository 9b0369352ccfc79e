"""The glass checkpoint: an ordinary small language model whose weights are set by hand, so that its scores list what was attended to."""
