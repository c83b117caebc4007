"""GRPO on a small policy that writes 10 tokens a prompt, groups of 12 answers. FAULT: the advantages are divided by the standard deviation of their group
with nothing added; once the policy has solved a prompt all 12 rewards are equal, 0 / 0 gives NaN and the weights with it.
Without Rangewatch: reward 0.13 to 0.63 at step 85, where the loss is NaN (least deviation 0); from 86 on the policy is NaN.
Cause: eps, forward_arithmetic (0 / 0) or data. Step: 85. Right: eps / std / division / group. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["eps", "forward_arithmetic", "data"], "step": [84, 88], "place": None, "rank": None,
          "right": "(?i)eps|std|standard deviation|divi|group|advantage|variance|zero|0 ?/ ?0|clamp", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2910); torch.set_num_threads(1)
V, L, P, G = 8, 10, 6, 12
answers = torch.randint(0, V, (P, L))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.prompt, self.place = nn.Embedding(P, 48), nn.Embedding(L, 48)
        self.body = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, V))

    def forward(self, prompt):
        return torch.log_softmax(self.body(self.prompt(prompt)[:, None] + self.place.weight), -1)


policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3, weight_decay=0.0)
handle = rangewatch.attach(policy, optimizer)
for step in range(200):
    prompt = torch.arange(P).repeat_interleave(G)
    logp = policy(prompt)
    with torch.no_grad():
        if torch.isnan(logp).any():
            tokens = torch.zeros(P * G, L, dtype=torch.long)
        else:
            tokens = torch.distributions.Categorical(logits=logp).sample()
        reward = (tokens == answers[prompt]).float().mean(1).view(P, G)
        advantage = (reward - reward.mean(1, keepdim=True)) / reward.std(1, keepdim=True)
        old = logp.gather(2, tokens[..., None])[..., 0]
    new = logp.gather(2, tokens[..., None])[..., 0]
    ratio = (new - old).exp()
    adv = advantage.view(-1, 1)
    loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 0 or step == 199:
        print(step, loss.item(), "reward", reward.mean().item(), "least std", reward.std(1).min().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
