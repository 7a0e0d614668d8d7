"""asyncio with a subprocess, a timeout and tasks left over at the end."""

import asyncio
import sys


async def main():
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(6 * 7)", stdout=asyncio.subprocess.PIPE)
    print((await child.communicate())[0], child.returncode)
    try:
        await asyncio.wait_for(asyncio.sleep(10), 0.01)
    except asyncio.TimeoutError:
        print("timeout")
    main.left = asyncio.ensure_future(asyncio.sleep(100))


asyncio.run(main())
print(main.left.cancelled())
