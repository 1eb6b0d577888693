"""Classification of observations, and error rates of a classifier while it learns."""
