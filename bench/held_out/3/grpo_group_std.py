"""GRPO on a toy task: a small GRU policy writes four digits for a prompt and is paid for coming close to the right ones; eight answers a prompt, the
advantage is (reward - mean of the group) / std of the group. FAULT: no epsilon below the line. Without Rangewatch: the reward rises from -2.44 to
-1.95; at step 33 the first group of eight has equal rewards, loss NaN from there on and all weights with it (reward -2.7 of random digits).
Report: huggingface/trl#6365 and NVIDIA-NeMo/RL#4161 (groups whose rewards are all the same: std is 0), bojieli/ai-agent-book#498 (std = 0 is not
defined, say whether to skip the group or add an epsilon). Cause: 0 / 0 in the loss' arithmetic. Right: an epsilon, or leave out groups of equal
rewards. Wrong: lower the learning rate, another precision, an attention mask, clip gradients (NaN stays NaN)."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [32, 34], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "loss scale"],
          "right": "eps|0 ?/ ?0|divi|std|standard deviation|advantage|zero|root"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3); torch.set_num_threads(1)
DIGITS, LENGTH, PROMPTS, GROUP = 8, 4, 8, 8


class Policy(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.prompt = nn.Embedding(32, d)
        self.token = nn.Embedding(DIGITS + 1, d)
        self.cell = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, DIGITS)

    def forward(self, prompt, tokens):
        out, _ = self.cell(self.token(tokens), self.prompt(prompt)[None])
        return self.head(out)

    @torch.no_grad()
    def sample(self, prompt):
        tokens = torch.full((len(prompt), 1), DIGITS)
        for _ in range(LENGTH):
            logits = self(prompt, tokens)[:, -1]
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)
        return tokens


answers = torch.randint(0, DIGITS, (32, LENGTH))
policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
watch = rangewatch.attach(policy, optimizer)
for step in range(200):
    prompt = torch.randint(0, 32, (PROMPTS,)).repeat_interleave(GROUP)
    policy.eval()
    tokens = policy.sample(prompt) if torch.isfinite(policy.head.bias).all() else torch.randint(0, DIGITS, (PROMPTS * GROUP, LENGTH + 1))
    policy.train()
    reward = -(tokens[:, 1:] - answers[prompt]).abs().float().mean(1)
    group = reward.view(PROMPTS, GROUP)
    advantage = ((group - group.mean(1, keepdim=True)) / group.std(1, keepdim=True)).view(-1, 1)
    logp = F.log_softmax(policy(prompt, tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    ratio = torch.exp(logp - logp.detach())
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item(), reward=reward.mean().item())
    if step % 20 == 0 or 30 <= step < 42:
        print(step, round(loss.item(), 5), round(reward.mean().item(), 3), round(group.std(1).min().item(), 4))
