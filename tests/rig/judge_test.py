"""The judge finds what it should, and nothing else: histories of a few lines,
each with a fault, and the same without it."""

import sys

import judge

PLACES = """\
h 0 driver driver w - 0 0 0 0
Q jobs attempts=5 counted=0 ordered=1
"""
WORKER = "h 0 today work w jobs 3000 0 0 1\n"
NO_LEASE = "h 0 today work w jobs 0 0 0 1\n"
OUTBOX = "h 0 today frames w jobs 3000 0 1 1\n"
OLD = "h 0 0.1 work w jobs 3000 0 0 1\n"
KEPT = "h 0 today frames w jobs 3000 0 2 1\n"
# An item that is offered at 1 s with a delay of 1 s, taken at 2 s with a lease
# of 3 s, and acked.
OFFER = "o 1000000 1 7 1000 - 0\nr 1001000 1 0 2000-aa00\n"
TAKE = "T 1500000 2001000 7 1 2000 1000 5001-aa01 24\n"
ACK = "a 2100000 2 7 5001-aa01\nr 2101000 2 0 -\n"
GOOD = OFFER + TAKE + ACK

# Each case: a sentence, the violated invariant or None, the driver's lines, the
# histories of the processes.
CASES = [
    ("an item that is offered, taken and acked", None, "", [WORKER + GOOD]),
    ("an item that is pending at the end", None,
     "F jobs pending 7 2000 0 -\n", [WORKER + OFFER]),
    ("an item that is nowhere", "lost", "", [WORKER + OFFER]),
    ("a leased item that is nowhere", "lost", "", [WORKER + OFFER + TAKE]),
    ("an item whose ack was refused, and which is nowhere", "lost", "",
     [WORKER + OFFER + TAKE + "a 2100000 2 7 5001-aa01\nr 2101000 2 -4 -\n"]),
    ("an item whose ack has no result", None, "",
     [WORKER + OFFER + TAKE + "a 2100000 2 7 5001-aa01\n"]),
    ("an item whose ack is unknown", None, "",
     [WORKER + OFFER + TAKE + "a 2100000 2 7 5001-aa01\nr 2101000 2 -10 -\n"]),
    ("an item whose offer is unknown", None, "",
     [WORKER + "o 1000000 1 7 1000 - 0\nr 1001000 1 -10 -\n"]),
    ("an item that a failover has touched", None,
     "w 900000 1100000 failover\n", [WORKER + OFFER]),
    ("an item that the failover before has not touched", "lost",
     "w 900000 950000 failover\n", [WORKER + OFFER]),
    ("an item whose key another offer has replaced", None,
     "F jobs pending 8 2000 0 -\n",
     [WORKER + "o 1000000 1 7 1000 k 0\nr 1001000 1 0 2000-aa00\n"
      "o 1100000 2 8 900 k 1\nr 1101000 2 0 2000-bb00\n"]),
    ("an item without a lease, whose take was lost", None, "",
     [NO_LEASE + OFFER]),

    ("an item that is acked twice", "twice", "",
     [WORKER + GOOD, WORKER + "a 2100000 2 7 5001-aa01\nr 2101000 2 0 -\n"]),
    ("an item that is acked, and unknown before", None, "",
     [WORKER + OFFER + TAKE + "a 2100000 2 7 5001-aa01\nr 2101000 2 -10 -\n"
      "a 2200000 3 7 5001-aa01\nr 2201000 3 0 -\n"]),
    ("an item that is stored twice", "twice",
     "F jobs pending 7 2000 0 -\nF jobs ready 7 0 0 -\n", [WORKER + OFFER]),
    ("an item that 0.1 has stored twice, since the clock was set back", None,
     "k 1000500 1000600 -500000\n"
     "F jobs pending 7 2000 0 -\nF jobs ready 7 0 0 -\n", [OLD + OFFER]),
    ("an item that 0.1 has stored twice", "twice",
     "F jobs pending 7 2000 0 -\nF jobs ready 7 0 0 -\n", [OLD + OFFER]),
    ("an item that is acked and still there", "twice",
     "F jobs pending 7 2000 0 -\n", [WORKER + GOOD]),
    ("an item that is cancelled and still there", "twice",
     "F jobs pending 7 2000 0 -\n",
     [WORKER + OFFER + "c 1100000 2 7\nr 1101000 2 0 -\n"]),
    ("a leased item that is delivered after its ack", "twice", "",
     [WORKER + GOOD,
      WORKER + "T 5500000 5501000 7 2 5001 1000 8501-aa02 24\n"]),
    ("a delivery that had begun before the ack", None, "",
     [WORKER + OFFER + TAKE +
      "a 5100000 2 7 5001-aa01\nr 5601000 2 -10 -\n",
      WORKER + "T 5500000 5501000 7 2 5001 1000 8501-aa02 24\n"]),
    ("an item without a lease that is delivered twice", "twice", "",
     [NO_LEASE + OFFER + "T 1500000 2001000 7 1 2000 1000 - 24\n"
      "T 2500000 2501000 7 1 2000 1000 - 24\n"]),
    ("an item that nobody has offered", "twice", "", [WORKER + TAKE]),

    ("an item that is early", "early", "",
     [WORKER + OFFER + "T 1500000 1999000 7 1 2000 0 4999-aa01 24\n" +
      ACK.replace("5001", "4999")]),
    ("an item that is early by its lease, though its reply came late", "early",
     "", [WORKER + OFFER + TAKE.replace("5001", "4990") +
          ACK.replace("5001", "4990")]),
    ("an item that is early after its clock was set back", "early",
     "k 1100000 1100100 -500000\n", [WORKER + GOOD]),
    ("an item that is on time, since the clock was set forward", None,
     "k 1100000 1100100 500000\n",
     [WORKER + OFFER + "T 1500000 1600000 7 1 2000 100000 5100-aa01 24\n" +
      ACK.replace("5001", "5100")]),
    ("a clock that was set forward and back", "early",
     "k 1100000 1100100 500000\nk 1200000 1200100 0\n",
     [WORKER + OFFER + "T 1500000 1600000 7 1 2000 0 5100-aa01 24\n" +
      ACK.replace("5001", "5100")]),
    ("an item that was moved to a list while the clock was ahead", None,
     "k 1100000 1100100 1500000\nk 1200000 1200100 0\n",
     [WORKER + OFFER + "T 1500000 1600000 7 1 0 -1 4600-aa01 24\n" +
      ACK.replace("5001", "4600")]),
    ("a leased item that another takes before the lease ends", "early", "",
     [WORKER + OFFER + TAKE,
      WORKER + "T 3900000 4000000 7 2 3999 1000 7000-aa02 24\n"
      "a 4100000 2 7 7000-aa02\nr 4101000 2 0 -\n"]),
    ("a leased item that another takes after a nack", None, "",
     [WORKER + OFFER + TAKE + "n 3500000 2 7 5001-aa01 400\nr 3501000 2 0 -\n",
      WORKER + "T 3900000 4000000 7 2 3999 1000 7000-aa02 24\n"
      "a 4100000 2 7 7000-aa02\nr 4101000 2 0 -\n"]),
    ("the same before the delay of the nack is over", "early", "",
     [WORKER + OFFER + TAKE + "n 3500000 2 7 5001-aa01 600\nr 3501000 2 0 -\n",
      WORKER + "T 3900000 4000000 7 2 3999 1000 7000-aa02 24\n"
      "a 4100000 2 7 7000-aa02\nr 4101000 2 0 -\n"]),
    ("a rescheduled item before its new time", "early", "",
     [WORKER + OFFER + "s 1100000 2 7 5000\nr 1101000 2 0 6101-cc00\n" +
      TAKE + ACK]),
    ("a reschedule whose result is unknown", None, "",
     [WORKER + OFFER + "s 1100000 2 7 5000\nr 1101000 2 -10 -\n" +
      TAKE + ACK]),
    ("an extended lease that ends at its former time", "early", "",
     [WORKER + OFFER + TAKE +
      "x 2100000 2 7 5001-aa01 9000\nr 2101000 2 0 11101-aa01\n",
      WORKER + "T 5500000 5501000 7 2 5001 1000 8501-aa02 24\n"
      "a 5600000 2 7 8501-aa02\nr 5601000 2 0 -\n"]),
    ("a lease that is too short", "early", "",
     [WORKER + OFFER + "T 1999500 2001000 7 1 2000 1000 4001-aa01 24\n"
      "a 2100000 2 7 4001-aa01\nr 2101000 2 0 -\n"]),

    ("an order that is kept", None, "",
     [WORKER + OFFER + "o 1002000 2 8 1000 - 0\nr 1003000 2 0 2001-bb00\n",
      WORKER + TAKE + ACK +
      "T 2200000 2201000 8 1 2001 1000 5201-bb01 24\n"
      "a 2300000 3 8 5201-bb01\nr 2301000 3 0 -\n"]),
    ("a later item that comes first", "order", "",
     [WORKER + OFFER + "o 1002000 2 8 1000 - 0\nr 1003000 2 0 2001-bb00\n",
      WORKER + "T 2002000 2003000 8 1 2001 1000 5003-bb01 24\n"
      "a 2004000 3 8 5003-bb01\nr 2005000 3 0 -\n" +
      "T 2010000 2011000 7 1 2000 1000 5011-aa01 24\n" +
      "a 2100000 2 7 5011-aa01\nr 2101000 2 0 -\n"]),

    ("an offer that has failed and is delivered", "status", "",
     [WORKER + OFFER.replace("1 0 2000-aa00", "1 -8 -") + TAKE + ACK]),
    ("an offer that is a duplicate and is stored", "status",
     "F jobs pending 7 2000 0 -\nF jobs pending 9 2000 0 -\n",
     [WORKER + "o 900000 3 9 1000 k 0\nr 901000 3 0 1900-ee00\n"
      "o 1000000 1 7 1000 k 0\nr 1001000 1 3 1900-ee00\n"]),
    ("an ack that is told as gone within the lease", "status",
     "F jobs pending 7 5001 1 -\n",
     [WORKER + OFFER + TAKE + "a 2100000 2 7 5001-aa01\nr 2101000 2 2 -\n"]),
    ("an ack that is gone after the lease", None,
     "F jobs ready 7 5001 1 -\n",
     [WORKER + OFFER + TAKE + "a 5100000 2 7 5001-aa01\nr 5101000 2 2 -\n"]),
    ("an ack that is gone since the clock was set forward", None,
     "F jobs ready 7 5001 1 -\nk 2050000 2050001 4000000\n",
     [WORKER + OFFER + TAKE + "a 2100000 2 7 5001-aa01\nr 2101000 2 2 -\n"]),
    ("a cancel that is gone before the item is due", "status",
     "F jobs pending 7 2000 0 -\n",
     [WORKER + OFFER + "c 1100000 2 7\nr 1101000 2 2 -\n"]),

    ("a dead letter that was buried", None, "F jobs dead 7 0 1 buried\n",
     [WORKER + OFFER + TAKE + "b 2100000 2 7 5001-aa01\nr 2101000 2 0 -\n"]),
    ("a dead letter that nobody has buried", "dead",
     "F jobs dead 7 0 1 buried\n", [WORKER + OFFER + TAKE]),
    ("a dead letter after one attempt of five", "dead",
     "F jobs dead 7 0 1 attempts\n", [WORKER + OFFER + TAKE]),
    ("a sixth attempt", "dead", "F jobs pending 7 0 1 -\n",
     [WORKER + OFFER + "T 1500000 2001000 7 6 2000 1000 5001-aa01 24\n"]),

    ("two items under one key", "keys",
     "F jobs pending 7 2000 0 -\nF jobs pending 8 2000 0 -\n",
     [WORKER + "o 1000000 1 7 1000 k 0\nr 1001000 1 0 2000-aa00\n"
      "o 1100000 2 8 900 k 0\nr 1101000 2 0 2000-bb00\n"]),
    ("two items under one key, which was freed", None,
     "F jobs pending 7 2000 0 -\nF jobs pending 8 2000 0 -\n",
     [WORKER + "o 1000000 1 7 1000 k 0\nr 1001000 1 0 2000-aa00\n"
      "f 1050000 3 k\nr 1051000 3 0 -\n"
      "o 1100000 2 8 900 k 0\nr 1101000 2 0 2000-bb00\n"]),
    ("a duplicate of nothing", "keys", "",
     [WORKER + "o 1000000 1 7 1000 k 0\nr 1001000 1 3 2000-aa00\n"]),

    ("totals that account for every item", None,
     "Q jobs attempts=5 counted=1\nC jobs offered 2\nC jobs acked 1\n"
     "F jobs pending 8 2000 0 -\n",
     [WORKER + GOOD + "o 1002000 3 8 1000 - 0\nr 1003000 3 0 2001-bb00\n"]),
    ("an item that the totals miss", "counters",
     "Q jobs attempts=5 counted=1\nC jobs offered 2\nC jobs acked 1\n",
     [WORKER + GOOD]),
    ("an ack that is counted twice", "counters",
     "Q jobs attempts=5 counted=1\nC jobs offered 2\nC jobs acked 2\n",
     [WORKER + GOOD]),

    ("a mirror with nothing but pending items", None,
     "F jobs pending 7 2000 0 -\nF jobs mirror 7 0 0 -\n", [WORKER + OFFER]),
    ("a mirror with an acked item", "mirror", "F jobs mirror 7 0 0 -\n",
     [WORKER + GOOD]),

    ("two leases with one ticket", "tickets", "",
     [WORKER + GOOD + "o 1002000 3 8 1000 - 0\nr 1003000 3 0 2001-bb00\n"
      "T 1501000 2002000 8 1 0 -1 5001-aa01 24\n"
      "a 2300000 4 8 5001-aa01\nr 2301000 4 0 -\n"]),

    ("an item that is taken from a paused queue", "paused", "",
     [WORKER + "z 1100000 9 1\nr 1101000 9 0 -\n"
      "z 3000000 10 0\nr 3001000 10 0 -\n" + GOOD]),
    ("an item that is taken after the resume", None, "",
     [WORKER + "z 1100000 9 1\nr 1101000 9 0 -\n"
      "z 1900000 10 0\nr 1901000 10 0 -\n" + GOOD]),
    ("an item that had been fetched before the pause", None, "",
     [WORKER + OFFER + "z 1600000 9 1\nr 1601000 9 0 -\n"
      "z 3000000 10 0\nr 3001000 10 0 -\n", OUTBOX + TAKE + ACK]),

    ("an offer that a kept outbox has forgotten", "kept", "",
     [KEPT + "o 1000000 1 7 1000 - 0\nr 1000100 1 97 -\n" + KEPT]),
    ("an offer that the next process has settled, and that is nowhere",
     "lost", "", [KEPT + "o 1000000 1 7 1000 - 0\nr 1000100 1 97 -\n" + KEPT +
                  "r 9001000 1 0 -\n"]),
    ("an offer that the next process has settled", None,
     "F jobs pending 7 2000 0 -\n",
     [KEPT + "o 1000000 1 7 1000 - 0\nr 1000100 1 97 -\n" + KEPT +
      "r 9001000 1 0 -\n"]),

    ("a process that sees what must not be", "process", "",
     [WORKER + "! 5 peek shows 1 after 2\n"]),
    ("due items at the end", "drained", "! 5 3 due items are not drained\n",
     [WORKER + GOOD]),
]


def run():
    """Returns passed, failed."""
    passed = failed = 0
    for sentence, wanted, driver, processes in CASES:
        files = {"process%d" % i: text for i, text in enumerate(processes)}
        j = judge.judge_lines({"driver": PLACES + driver, **files})
        found = sorted({f.invariant for f in j.findings})
        if found == ([wanted] if wanted else []):
            passed += 1
        else:
            failed += 1
            print("FAIL the judge: %s: it finds %s, not %s" % (
                sentence, found, wanted))
            for f in j.findings:
                print("    %s" % f)
    return passed, failed


if __name__ == "__main__":
    good, bad = run()
    print("%d passed, %d failed, 0 skipped" % (good, bad))
    sys.exit(1 if bad else 0)
