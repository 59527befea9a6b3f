"""A broker inside the program that tests against it, and the pytest fixture that brings one."""
