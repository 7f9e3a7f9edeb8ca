"""`hub.compile`: a model's plan without Dynamo at every call, and with all that Dynamo checks.

The way of a call: `program` finds the entry (`entry`) whose inputs these are and whose `watch` says that nothing that the
program read from Python has changed, and goes to the plan. Everything else goes through Dynamo, which decides anew.

`recorder` hears of Dynamo's guards, `reads` turns them into what is watched, `modes` compares the thread's own state,
and `feeding` leads inputs into the graph and its outputs to the result. `compile` is what users call, and `attempt` tries
for `hub explain` whether a model's calls would go without Dynamo.
"""
