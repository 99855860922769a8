"""Our verbs in, their tracker out: one module a backend."""
