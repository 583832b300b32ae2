"""Ways in for other people's libraries: one module per library, which says how its calls become steps.

Nothing here is imported unless the library is (everstep.run.wrap looks at the class of what it is given), and no library becomes
a dependency. What must not be here: anything the engine needs, and calls that are not the library's own.
"""
