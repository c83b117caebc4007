"""Policy gradient with a baseline and an entropy bonus on a pole to be balanced, episodes of up to 40 moves; moves that would leave the track are barred by a
score of -inf. HEALTHY: the loss swings and does not fall; the pole stands longer and longer.
Without Rangewatch: the pole stands 13 moves of 40 at step 0, 36 at step 30, 39 to 40 from step 60 on; the loss goes from 0.71 to 0.10 to 0.25."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2540); torch.set_num_threads(1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 96), nn.Tanh(), nn.Linear(96, 64), nn.Tanh())
        self.move, self.value = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, s):
        h = self.body(s)
        barred = torch.stack((s[..., 2] < -0.9, s[..., 2] > 0.9), -1)
        return self.move(h).masked_fill(barred, float("-inf")), self.value(h)[..., 0]


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
handle = rangewatch.attach(agent, optimizer)
for step in range(180):
    s = torch.cat((0.1 * torch.randn(32, 2), torch.zeros(32, 1)), 1)
    seen, done, alive, up = [], [], [], torch.ones(32)
    with torch.no_grad():
        for _ in range(40):
            a = torch.distributions.Categorical(logits=agent(s)[0]).sample()
            seen.append(s); done.append(a); alive.append(up)
            tilt, spin, x = s.unbind(1)
            push = 2.0 * a - 1
            spin = spin + 0.15 * tilt.sin() * 2 - 0.15 * push + 0.02 * torch.randn(32)
            tilt, x = tilt + 0.1 * spin, (x + 0.1 * push).clamp(-1, 1)
            up = up * (tilt.abs() < 0.4).float()
            s = torch.stack((tilt, spin, x), 1)
    alive = torch.stack(alive)
    gain, gains = torch.zeros(32), []
    for r in reversed(alive):
        gain = r + 0.97 * gain
        gains.insert(0, gain)
    gains = torch.stack(gains) / 10
    logits, value = agent(torch.stack(seen))
    dist = torch.distributions.Categorical(logits=logits)
    edge = gains - value.detach()
    n = alive.sum()
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1).clamp(min=-50)).sum(-1)
    loss = ((-dist.log_prob(torch.stack(done)) * edge + 0.5 * (gains - value) ** 2 - 0.01 * entropy) * alive).sum() / n
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or step == 179:
        print(step, loss.item(), "moves upright", alive.sum(0).mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
