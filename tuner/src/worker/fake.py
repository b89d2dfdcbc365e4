#!/usr/bin/env python3
"""A GPU worker without a GPU, for tests: answers as plan.json beside it says, and fails where that says so."""
import copy, json, os, struct, sys, time

folder = os.path.dirname(os.path.abspath(sys.argv[0]))
plan = json.load(open(os.path.join(folder, "plan.json")))
gone = os.path.join(folder, "gone")
# Times of launches, µs, by `KERNEL SPLIT SHAPE`, the last two in JSON; the plan's where there is no file.
times_file = os.path.join(folder, "times.json")
times = json.load(open(times_file)) if os.path.exists(times_file) else {}


def name(candidate, shape):
    return " ".join([candidate["id"]] + [json.dumps(x, separators=(",", ":")) for x in (candidate["split"], shape)])



def answer(what, last=False):
    message = json.dumps({"answer": what, "last": last}).encode()
    sys.stdout.buffer.write(struct.pack("<I", len(message)) + message)
    sys.stdout.buffer.flush()


def fail(place):
    how = plan["faults"].get(place)
    if how == "crash":
        sys.exit("CUDA_ERROR_ILLEGAL_ADDRESS")
    if how == "hang":
        time.sleep(30)
    if how == "garbage":
        os.write(1, b"\0\0\0\0not a frame")
        sys.exit()
    if how == "gone":
        open(gone, "w").close()
        sys.exit("CUDA_ERROR_DEVICE_UNAVAILABLE")
    if how is not None:
        answer({"Failed": how["outcome"]}, how["last"])
        if how["last"]:
            sys.exit()
    return how is not None


while len(head := sys.stdin.buffer.read(4)) == 4:
    request = json.loads(sys.stdin.buffer.read(struct.unpack("<I", head)[0]))
    if os.path.exists(gone):
        answer({"Unavailable": "the driver lists no device"}, True)
        sys.exit()
    if request == "Environment":
        answer({"Environment": plan["environment"]})
    elif "Transfer" in request:
        traffic = request["Transfer"]["traffic"]
        answer({"Transferred": (traffic["read"] + traffic["written"]) / plan["measured"]["read_ceiling_gbps"] / 1e3})
    elif "Verify" in request:
        if not fail("verify " + request["Verify"]["kernel"]["id"]):
            answer({"Verified": plan["verified"]})
    elif "Measure" in request:
        measure = request["Measure"]
        report = copy.deepcopy(plan["measured"])
        places = ["measure " + candidate["id"] for candidate in measure["candidates"]]
        if not any(map(fail, places + [f"measure {measure['shape'].get('tokens')} tokens"])):
            samples = report["candidates"][0]["Ok"][0]
            shape = measure["shape"]

            def us(candidate):
                launch = f"{candidate['id']} at {shape.get('tokens')} tokens"
                return times.get(name(candidate, shape), plan["faults"].get(launch, samples))

            report["candidates"] = [{"Ok": [us(candidate)] * measure["samples"]} for candidate in measure["candidates"]]
            answer({"Measured": report})
