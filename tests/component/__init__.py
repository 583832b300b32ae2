"""Real processes of ours against a stand-in for the other side: the operator against a mock API server, local mode, the world."""
