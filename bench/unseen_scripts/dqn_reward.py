"""Double DQN with a target network, replay, Huber off. FAULT at step 180: a transition with reward 1e20 (sensor error) is in the
replay sample; it is in the targets only, never in the model's input. Cause: data (targets of the batch), step 180. Finite.
Right: look at the batch (targets, rewards) of step 180. Wrong: mask, weights of a checkpoint, fp16 advice, 'dead activation' as root."""
EXPECT = {"cause": ["data"], "step": [180, 181], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "checkpoint", "bfloat16", "GradScaler"], "right": "batch|target"}
import copy
import random
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); random.seed(0); torch.set_num_threads(1)
q = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
target = copy.deepcopy(q).requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), 5e-4)
watch = rangewatch.attach(q, opt)
replay, state, gamma = [], torch.randn(4), 0.95

def env(s, a):
    nxt = 0.9 * s + 0.3 * torch.randn(4)
    nxt[a] += 0.2
    return nxt, float(torch.cos(nxt[a])), random.random() < 0.05

for step in range(300):
    for _ in range(4):
        with torch.no_grad():
            a = random.randrange(3) if random.random() < 0.2 else int(q(state).argmax())
        nxt, r, done = env(state, a)
        replay.append((state, a, r, nxt, done))
        state = torch.randn(4) if done else nxt
    batch = random.sample(replay[-2000:], min(64, len(replay)))
    if step == 180:
        s0, a0, _, n0, _ = batch[5]
        batch[5] = (s0, a0, 1e20, n0, True)
    s, a, r, n, d = zip(*batch)
    s, n = torch.stack(s), torch.stack(n)
    a, r, d = torch.tensor(a), torch.tensor(r), torch.tensor(d, dtype=torch.float32)
    with torch.no_grad():
        best = q(n).argmax(1, keepdim=True)
        y = r + gamma * (1 - d) * target(n).gather(1, best).squeeze(1)
    loss = (q(s).gather(1, a[:, None]).squeeze(1) - y).pow(2).mean()
    opt.zero_grad(); loss.backward()
    opt.step()
    watch.log(td_loss=float(loss))
    if step % 50 == 49:
        target.load_state_dict(q.state_dict())
