"""`hub.compile`: a model's plan without Dynamo at every call, and with all that Dynamo checks.

The way of a call: `program` finds the entry (`entry`) whose inputs these are and whose `watch` says that nothing that the
program read from Python has changed, and goes to the plan. Everything else goes through Dynamo, which decides anew. `reads`
turns Dynamo's guards into what is watched, `modes` compares what belongs to the thread, `compile` is what users call.
"""
