"""GRPO on a toy: a small policy writes four digits, the reward is the share of digits that ascend as asked. The advantages are rewards less the mean of the group.
FAULT: the hand-written clip divides each gradient by its global norm, with no floor. From step 150 on the curriculum gives prompts so easy that all rewards of the batch
are equal: the advantages and the gradient are zero, 0/0 is NaN, all weights are NaN after that step.
Without Rangewatch: reward 0.42 to 0.91 at step 149; at step 150 reward 1 for all, norm 0, all weights NaN behind the step (the script ends there, 151 steps).
Cause: clip (optimizer). Step: 150. Right: clip / norm / division by zero. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["clip"], "step": [149, 152], "place": None, "rank": None,
          "right": "(?i)clip|norm|divi|eps", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(17); torch.set_num_threads(1)
V, LEN, G, PROMPTS = 10, 4, 8, 8


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V + 3, 32)
        self.cell = nn.GRUCell(32, 64)
        self.logits = nn.Linear(64, V)

    def rollout(self, prompt, actions=None):
        h = self.cell(self.emb(prompt + V), torch.zeros(len(prompt), 64))
        out, logp = [], []
        for k in range(LEN):
            dist = torch.distributions.Categorical(logits=self.logits(h))
            a = dist.sample() if actions is None else actions[:, k]
            out.append(a); logp.append(dist.log_prob(a))
            h = self.cell(self.emb(a), h)
        return torch.stack(out, 1), torch.stack(logp, 1)


def reward(prompt, out):
    up = (out[:, 1:] > out[:, :-1]).float().mean(1)
    down = (out[:, 1:] < out[:, :-1]).float().mean(1)
    return torch.where(prompt == 0, up, torch.where(prompt == 1, down, torch.ones_like(up)))


def clip_grads(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = torch.sqrt(sum((g ** 2).sum() for g in grads))
    for g in grads:
        g.mul_(max_norm / total)
    return total


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
handle = rangewatch.attach(policy, optimizer)
for step in range(170):
    kinds = torch.randint(0, 2, (PROMPTS,)) if step < 150 else torch.full((PROMPTS,), 2)
    prompt = kinds.repeat_interleave(G)
    with torch.no_grad():
        actions, old = policy.rollout(prompt)
    r = reward(prompt, actions).view(PROMPTS, G)
    adv = (r - r.mean(1, keepdim=True)).view(-1, 1)
    new = policy.rollout(prompt, actions)[1]
    ratio = (new - old).exp()
    loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = clip_grads(list(policy.parameters()), 1.0)
    optimizer.step()
    if step % 20 == 0 or 147 < step < 154:
        print(step, loss.item(), "reward", r.mean().item(), "norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
    if torch.isnan(policy.logits.weight).any():
        print("weights NaN after step", step)
        break
handle.detach()
