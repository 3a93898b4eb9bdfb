"""A real training loop over real images: what a faster data set is worth to it."""
