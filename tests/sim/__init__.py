"""The operator's decisions against a simulated cluster, kubelet, journal and clock, all driven by one printed seed.

    world     the truth: API server, nodes, kubelets, controllers, the outside that counts effects, and the clock
    agent     a small agent process that journals its steps on the real memory store by the real rules
    actor     observe → decide → act for the simulated world, stoppable between any two writes
    chaos     what is done to them, chosen by the seed
    checks    what must hold after every single event, and in the end

First safety under chaos, then everything heals and the run must end. One planted fault must be found (the canary).
"""
