"""A DQN walks a corridor to its end (double net, replay, Huber loss, Adam); the user has seen enough and presses ctrl-C in step 173 (a real SIGINT that the script sends to itself). No one catches the
KeyboardInterrupt: the script ends there with the usual traceback. FAULT: none in the training, it just ends.
Without Rangewatch: the value loss is small (0.0004 to 0.01) and the walker wins 50 times to step 172; then KeyboardInterrupt.
Cause: crash (info). Step: 173. Right: interrupted / KeyboardInterrupt / stopped by the user. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["crash"], "step": [171, 174], "place": None, "rank": None, "least": "info",
          "right": "(?i)interrupt|ctrl|stopp|user|by hand", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import copy
import os
import random
import signal
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3320); random.seed(3320); torch.set_num_threads(1)
LENGTH = 8


def encode(places):
    return F.one_hot(torch.tensor(places), LENGTH).float()


def act(place, go):
    place = max(0, place + (1 if go else -1))
    return (0, 1.0, True) if place == LENGTH - 1 else (place, 0.0, False)


q = nn.Sequential(nn.Linear(LENGTH, 48), nn.Tanh(), nn.Linear(48, 2))
frozen = copy.deepcopy(q)
optimizer = torch.optim.Adam(q.parameters(), lr=2e-3)
handle = rangewatch.attach(q, optimizer)
memory, place, won = [], 0, 0
for step in range(300):
    for _ in range(8):
        with torch.no_grad():
            go = random.random() < 0.5 if random.random() < 0.3 else bool(q(encode([place])).argmax())
        new, reward, done = act(place, go)
        memory.append((place, int(go), reward, new, done))
        won += reward
        place = new
    rows = random.sample(memory, min(64, len(memory)))
    s, a, r, n, d = zip(*rows)
    with torch.no_grad():
        best = q(encode(n)).argmax(1, keepdim=True)
        target = torch.tensor(r) + 0.9 * frozen(encode(n)).gather(1, best)[:, 0] * (1 - torch.tensor(d).float())
    loss = F.smooth_l1_loss(q(encode(s)).gather(1, torch.tensor(a)[:, None])[:, 0], target)
    optimizer.zero_grad()
    loss.backward()
    if step == 173:
        os.kill(os.getpid(), signal.SIGINT)
    optimizer.step()
    if step % 10 == 0:
        frozen.load_state_dict(q.state_dict())
    if step % 20 == 0 or step > 170:
        print(step, loss.item(), "won", won, flush=True)
    handle.log(loss=loss.item())
handle.detach()
