"""Compilation of graphs: back ends, loops and inlined operators."""
