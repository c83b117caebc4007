"""A net with embeddings of district and trade that forecasts fire claims; the claims have a heavy tail, so clip_grad_norm_ was put in. FAULT at step 120:
it stands after optimizer.step(), where it clips what is thrown away next; the gradient of one great (and true) claim goes in whole.
Without Rangewatch: loss 1.01 to 0.098 at step 119, 12,593 at step 120 (gradient norm 177), 1,794 with a norm of 2,091 at step 121, 1.1 to 1.4 at
steps 123 to 125, NaN from step 131 on; clipped before the step it is 0.21 at step 121 and 0.07 at the end.
Report: VGraphRNN/VGRNN#4, awslabs/graphstorm#1366, jongwook/onsets-and-frames#24, emited/VariationalRecurrentNeuralNetwork#3 (the clip after the step).
Cause: clip (or the claim in the data, or the rate). Step: 120. Right: clip / before the step / gradient norm / explode. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["clip", "data", "learning_rate"], "step": [119, 123], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "clip|gradient norm|explod|outlier|target|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1019); torch.set_num_threads(1)
DISTRICTS, TRADES = 20, 12
risk_d, risk_t = torch.randn(DISTRICTS), torch.randn(TRADES)


class ClaimNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.district, self.trade = nn.Embedding(DISTRICTS, 8), nn.Embedding(TRADES, 8)
        self.net = nn.Sequential(nn.Linear(18, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, district, trade, house):
        return self.net(torch.cat((self.district(district), self.trade(trade), house), 1))[:, 0]


def policies(n):
    district, trade, house = torch.randint(0, DISTRICTS, (n,)), torch.randint(0, TRADES, (n,)), torch.rand(n, 2)
    claim = (risk_d[district] + risk_t[trade]) * house[:, 0] + house[:, 1] + 0.2 * torch.randn(n)
    return district, trade, house, claim


model = ClaimNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    district, trade, house, claim = policies(64)
    if step == 120:
        claim[17] = 900.0  # a warehouse burnt down; this happened
    loss = F.mse_loss(model(district, trade, house), claim)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if step % 20 == 0 or 118 < step < 126 or step == 259:
        print(step, loss.item(), "gradient norm", norm.item(), flush=True)
    handle.log(loss=loss.item(), norm=norm.item())
handle.detach()
