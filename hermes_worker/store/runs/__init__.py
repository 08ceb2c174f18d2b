"""Runs, their calls, children, budgets and waits."""
