"""Real brokers under every fault at once, and exact accounts of what became of each message.

    python -m tests.chaos --minutes 20 --seed S

`schedule` draws what happens, `workload` lets clients work, `nemesis` carries the faults out, and
`laws` judges what the clients wrote down.
"""
