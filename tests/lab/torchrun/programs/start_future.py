"""No flag of another module's compiler leaks into the script: annotations are evaluated, asserts are there."""


def function(argument: 1 + 1) -> "text":  # noqa: F722, F821
    pass


print(function.__annotations__)
x: int = 3
print(__annotations__)
try:
    assert x == 4, "an assertion"
except AssertionError as error:
    print(error)
print(eval("__debug__"), compile("1/2", "", "eval").co_flags)
