"""instructor: an object from a forced call, which is requested again if it is not valid."""

import instructor
from _problem import FIRST, MODEL, SYSTEM
from instructor.core import InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel, field_validator


class Answer(BaseModel):
    """The answer to the problem."""

    number: int
    digits: int = 2

    @field_validator("number")
    @classmethod
    def _even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("the number must be even")
        return number


client = instructor.from_openai(OpenAI())
messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": FIRST}]
try:
    found = client.chat.completions.create(
        model=MODEL, messages=messages, response_model=Answer, max_retries=3
    )
    print(found.number)
except InstructorRetryException:
    print("no answer")
