"""Group-relative policy optimisation of a small policy: advantages are (reward - mean) / std of a group of sixteen, with no epsilon. FAULT as soon as
all sixteen answers to one prompt have the same reward: std is 0, and as the mean of sixteen rewards of 0.2 is not quite 0.2, the advantage is Inf or
NaN. Without Rangewatch: mean reward 0.23 to 0.28 at step 33, where the smallest std is 0 for the first time and the loss is Inf; NaN from step 34 on.
Report: pytorch/examples#76 (rewards that are all alike give 0 / 0, add an epsilon; REINFORCE there), NVIDIA-NeMo/RL#4161 (a std of nearly nothing
in GRPO; a loose relative).
Cause: forward arithmetic (in the advantage, before the loss; "data" is well enough, as the targets come from outside the model). Step: 33. Right:
epsilon / std of 0 / division. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [33, 34], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "divi|zero|eps|std|0 / 0|loss|target|label|batch|input"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(603); torch.set_num_threads(1)
VOCAB, PROMPTS, GROUP = 8, 6, 16


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.GELU())
        self.lm_head = nn.Linear(64, VOCAB)

    def forward(self, ids):
        return self.lm_head(self.body(self.embed(ids).flatten(1)))


policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
handle = rangewatch.attach(policy, optimizer)
first = None
for step in range(260):
    prompt = torch.randint(0, VOCAB, (PROMPTS, 2)).repeat_interleave(GROUP, 0)
    log_probs = F.log_softmax(policy(prompt), -1)
    answer = (log_probs.detach() - torch.empty_like(log_probs).exponential_().log()).argmax(1, keepdim=True)  # Gumbel
    reward = (answer[:, 0] == (prompt[:, 0] + prompt[:, 1]) % VOCAB).float() + 0.2 * (answer[:, 0] % 2).float()
    grouped = reward.view(PROMPTS, GROUP)
    advantage = (grouped - grouped.mean(1, keepdim=True)) / grouped.std(1, keepdim=True)
    taken = log_probs.gather(1, answer)[:, 0]
    loss = -(advantage.view(-1) * (taken - taken.detach()).exp()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if first is None and not torch.isfinite(loss):
        first = step
        print("first", step)
    if step % 20 == 0 or (first is not None and step <= first + 1):
        print(step, loss.item(), reward.mean().item(), grouped.std(1).min().item(), flush=True)
    if first is not None and step > first + 40:
        break
handle.detach()
