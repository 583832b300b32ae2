"""The outside world of demos and tests: a model, a ticket tracker and a mail gateway behind one HTTP port.

Belongs here: a service that behaves like the systems an agent works with, counts every request it sees, and can be told to
be slow or to hold a request. Must not be here: anything of Everstep. It judges what Everstep promises, so it shares no code
with it and runs outside its reach (own pod, own namespace).
"""
