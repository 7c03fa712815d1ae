"""The extension of the verifier pool: verifiers run in killable processes, isolated as far as
the machine allows.

keys.py       the section `verifier`
pool.py       the pool: calls, deadlines, retries
crew.py       its workers: kept at their number, replaced
processes.py  the host's ends of their processes; wire.py: the messages
inside/       what runs in them: the fork server that forks the workers, and their locks
"""
