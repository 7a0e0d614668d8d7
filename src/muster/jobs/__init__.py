"""The jobs of this user: where they are kept, and how a running one is asked."""
