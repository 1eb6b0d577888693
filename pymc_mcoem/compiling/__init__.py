"""Back ends, loops and inlined operators: how graphs are compiled."""
