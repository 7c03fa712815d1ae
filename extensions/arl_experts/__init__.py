"""The load of the experts of a mixture: its metrics, and a loss that balances it.

keys.py     the key `algo.expert_balance_coef`
watch.py    the routers' choices and scores in the passes of a policy
load.py     the metrics of the load
balance.py  the loss
"""
