"""REINFORCE with a recurrent policy that must answer the last of two signals over five turns. FAULT at step 150: the reward service changes its unit: rewards come 2,000
times as large, and the factor fades by a seventh with each step; nothing clips, and the gradients of the policy explode, then die away.
Without Rangewatch: gradient norm 0.06 at step 149, 10 at step 150, 319 at step 153, 39 at 155, 4.6 at 165, 0.2 at 180.
Cause: data (the rewards); clip (none is there) and learning_rate (unscaled for such gradients) are fair. Step: 150. Right: reward / clip / normalise / batch / rate.
Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "clip", "learning_rate"], "step": [149, 156], "place": None, "rank": 0,
          "right": "(?i)reward|clip|normali|batch|data|target|learning rate|advantage", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2429); torch.set_num_threads(1)


class Answerer(nn.Module):
    def __init__(self):
        super().__init__()
        self.hear = nn.Linear(6, 40)
        self.state = nn.RNNCell(40, 40)
        self.act = nn.Linear(40, 3)

    def forward(self, signals):
        h, out = signals.new_zeros(len(signals), 40), []
        for s in signals.unbind(1):
            h = self.state(torch.relu(self.hear(s)), h)
            out.append(self.act(h))
        return torch.stack(out, 1).log_softmax(2)


policy = Answerer()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
handle = rangewatch.attach(policy, optimizer)
for step in range(220):
    first, second = torch.randint(0, 3, (2, 128, 5))
    signals = torch.cat((torch.eye(3)[first], torch.eye(3)[second]), 2) + 0.1 * torch.randn(128, 5, 6)
    log_p = policy(signals)
    action = torch.multinomial(log_p.detach().exp().flatten(0, 1), 1).view(128, 5, 1)
    unit = 1.0 if step < 150 else max(1.0, 2e3 * 0.85 ** (step - 150))
    right = (action[..., 0] == second).float()
    reward = unit * (right + 1.0 * torch.randn(128, 5))
    advantage = reward - reward.mean(0)
    loss = -(advantage * log_p.gather(2, action)[..., 0]).sum(1).mean() + 0.2 * (log_p.exp() * log_p).sum(2).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in policy.parameters()]).norm().item()
    optimizer.step()
    if step % 15 == 0 or 148 < step < 156 or step == 219:
        print(step, loss.item(), "right", right.mean().item(), "gradient norm", norm, flush=True)
    handle.log(loss=loss.item(), grad_norm=norm)
handle.detach()
