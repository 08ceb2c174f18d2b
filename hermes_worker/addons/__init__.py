"""Extensions that come with the product and are not in force before an operator enables them: each uses a service of
others, with a key of the operator's. One package each, with a ``plugin.yaml``, as third parties write them
(docs/addons.md).
"""
