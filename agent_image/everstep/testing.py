"""Testing agents: a journal in memory, and crashes at named points. (See below in this package's next commit.)"""
