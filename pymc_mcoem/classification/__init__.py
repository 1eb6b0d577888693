"""Class labels of observations, and tests of a classifier while it learns."""
