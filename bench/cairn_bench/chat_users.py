"""chat_users.py ADDRESS MODEL N: N users of the real `openai` package talk at the same time, three turns each, streamed.
Prints "tokens_per_s": tokens of all answers over the time from the first question to the last token."""
import asyncio
import sys
import time

import openai

TURNS, TOKENS = 3, 64


async def user(client, model, number):
    messages, tokens = [{"role": "user", "content": f"I am user {number}. Tell me a long story about a river and a town."}], 0
    for turn in range(TURNS):
        stream = await client.chat.completions.create(model=model, messages=messages, max_tokens=TOKENS, temperature=0, stream=True,
                                                      stream_options={"include_usage": True})
        text = ""
        async for chunk in stream:
            if chunk.usage:
                tokens += chunk.usage.completion_tokens
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Go on, part {turn + 2}."}]
    return tokens


async def main(address, model, n):
    async with openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="none", timeout=300, max_retries=0) as client:
        began = time.monotonic()
        tokens = sum(await asyncio.gather(*(user(client, model, i) for i in range(n))))
        seconds = time.monotonic() - began
    print(f"tokens {tokens}\ntokens_per_s {tokens / seconds:.2f}")


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
