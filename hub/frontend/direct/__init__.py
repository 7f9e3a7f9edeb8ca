"""`hub.compile`: run a model's plan without Dynamo at every call, yet with everything that Dynamo checks.

The path of a call: if the `watch` shows that nothing that the program read from Python has changed, `program` looks for an
entry (`entry`) that fits the inputs, and runs the plan. If there is none, the code that Dynamo generated may still serve
(`general`). All other calls go through Dynamo, which decides again.

`recorder` receives Dynamo's guards, `reads` turns them into objects to watch, `modes` compares the thread's own state, and
`feeding` maps inputs to the graph's arguments and its outputs to the result. Users call `compile`. For `hub explain`,
`why_dynamo` finds out whether a model's calls would skip Dynamo.
"""
