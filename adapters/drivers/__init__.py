"""Their callbacks in, our verbs out: one module per training framework. Nothing is loaded before it is asked for."""
