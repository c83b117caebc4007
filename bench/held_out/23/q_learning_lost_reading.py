"""Deep Q-learning (two nets, replay of the last 4000 moves) of a heater that keeps a tank warm. FAULT: at step 110 the meter of the cost fails for one move
and its reward NaN goes into the replay; as soon as it is drawn (here at once) the target of Q is NaN, and a little later the target net, too.
Without Rangewatch: the mean reward rises from -2.0 to -0.2, the loss is 0.39 at step 109 and NaN from step 110 on; the reward falls to -6.
Causes: data (the reward). Right: reward / target / input / data / NaN in the batch / loss. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [109, 111], "place": None, "rank": 0,
          "right": "(?i)reward|target|data|batch|loss|input", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import copy
import torch
from torch import nn
import rangewatch

torch.manual_seed(2327); torch.set_num_threads(1)
q = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
late = copy.deepcopy(q)
optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
handle = rangewatch.attach(q, optimizer)
tank = torch.randn(32, 2)
replay = []
for step in range(200):
    with torch.no_grad():
        act = torch.where(torch.rand(32) < max(0.1, 1 - step / 80), torch.randint(0, 3, (32,)), q(tank).argmax(1))
        after = torch.stack((tank[:, 0] + 0.3 * (act - 1) - 0.2 * tank[:, 1], 0.9 * tank[:, 1] + 0.2 * torch.randn(32)), 1).clamp(-3, 3)
        reward = -after[:, 0] ** 2 - 0.05 * act
    if step == 110:
        reward[3] = float("nan")
    replay = (replay + [(tank, act, reward, after)])[-125:]
    tank = torch.where(torch.rand(32, 1) < 0.05, torch.randn(32, 2), after)
    drawn = [replay[-1]] + [replay[i] for i in torch.randint(0, len(replay), (3,)).tolist()]
    s, a, r, n = (torch.cat(parts) for parts in zip(*drawn))
    with torch.no_grad():
        target = r + 0.9 * late(n).max(1).values
    loss = nn.functional.smooth_l1_loss(q(s).gather(1, a[:, None])[:, 0], target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        late.load_state_dict(q.state_dict())
    if step % 20 == 0 or 108 < step < 113:
        print(step, loss.item(), "mean reward", reward.nanmean().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.nanmean().item())
handle.detach()
