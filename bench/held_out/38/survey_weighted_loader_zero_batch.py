"""A household survey (income bracket from 12 answers) with design weights, read through a DataLoader in the order of the districts; each batch's loss is the weighted mean; the weights are looked up by row number beside the loader. Adagrad, float64.
FAULT at step 110 of 160: the last-but-third district was left out of the design (weight 0 in all of its rows); a whole batch of it has weights that sum to 0, and the weighted mean is 0/0.
Without Rangewatch: loss 1.36 to 0.82 at step 109 (0.72 at best), NaN from step 110 on; the weights' sum is 0 there and some 60 else.
Cause: data / forward_arithmetic. Step: 110. Right: weights sum to zero / division by zero / eps. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [109, 112], "place": None, "rank": None,
          "right": r"(?i)divi|sum|zero|0/0|sample weight|weighted|loss", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

torch.manual_seed(2024)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
ROWS, BATCH = 5120, 32
answers = torch.randn(ROWS, 12)
bracket = torch.bucketize(answers[:, 0] + answers[:, 1] * answers[:, 2].tanh() + 0.3 * torch.randn(ROWS), torch.tensor([-1.0, 0.0, 1.0]))
district = torch.arange(ROWS) // 320
design = 0.2 + 3 * torch.rand(16)[district]
design[110 * BATCH: 111 * BATCH] = 0.0


class Household(nn.Module):
    def __init__(self):
        super().__init__()
        self.questionnaire = nn.Linear(12, 48)
        self.scale = nn.LayerNorm(48)
        self.profile = nn.Linear(48, 48)
        self.bracket = nn.Linear(48, 4)

    def forward(self, x):
        h = self.scale(F.softplus(self.questionnaire(x)))
        return self.bracket(h + torch.tanh(self.profile(h)))


household = Household()
opt = torch.optim.Adagrad(household.parameters(), lr=0.03)
loader = DataLoader(TensorDataset(answers, bracket, torch.arange(ROWS)), batch_size=BATCH, shuffle=False)
handle = rangewatch.attach(household, opt)
for step, (x, y, number) in enumerate(loader):
    w = design[number]
    each = F.cross_entropy(household(x), y, reduction="none")
    loss = (each * w).sum() / w.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or 108 < step < 113:
        print(f"{step:4d} loss {loss.item():.4f}  weights' sum {w.sum().item():.1f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
