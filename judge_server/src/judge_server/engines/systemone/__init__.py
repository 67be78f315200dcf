"""Decision models: models that answer typed questions about a state with probabilities, and write no text.

`questions` turns calls into typed questions and answers into replies, in the two dialects of the protocol, System One
and OpenAI's decisions. `engine` sends the requests.
"""
