"""Model parallelism: ranks that divide the tokens of a row, the matrices, or the experts.

shape.py        the numbers of a mesh, `c2t2e2`
keys.py         the key `trainer.mesh`
mesh.py         the groups of ranks
collectives.py  gathering, adding up and exchanging, with gradients
plans.py        the matrices of each family that are cut, and how
parallel.py     the division of a model, and a pass of it
attention.py    attention of ranks that have different tokens
experts.py      experts that ranks divide
head.py         the output layer of a vocabulary that is cut
checkpoint.py   checkpoints that any mesh can read
"""
